"""Raft without I/O: an event goes in, what is to be done comes out.

Nothing in here reads a clock, rolls dice, opens a file or a socket, or logs. Whoever drives a `Raft` (a node,
a simulator, a test) does this, for one group, again and again::

    raft.tick()                          time has passed
    raft.step(sender, message)           somebody said something
    raft.appended(count)                 the leader wrote entries of its own
    ready = raft.ready()                 what follows from all that:
        ready.hard_state                     1. save it; durably at once if `is_hard_state_first`
        ready.install                        2. begin the log anew behind this place, durably
        ready.truncate_from, ready.entries   3. cut the log, then append
        ready.messages                       4. send; never waits for the disk
        ready.replicate                      5. send entries: `raft.append_message(to, entries)`
        ready.commit                         6. apply and show everything up to here
    raft.log_durable(index)              the disk has the log up to here
    raft.saved(number)                   the disk has the hard state of that `ready`

Answers that promise something (a vote, a match) are held back in here until the disk has what they promise,
so a driver cannot send them too early. A leader counts itself only for what its own disk has.

Module by module: `messages` is what nodes say, `members` who they are, `log_shape` what is known of a log
without its bytes, `progress` what a leader knows of a follower, `raft` the rules, `leading` and `following` the
two parts one can play in a term, `liveness` which nodes are heard of. Sections in comments are those of Ongaro's
dissertation.
"""
