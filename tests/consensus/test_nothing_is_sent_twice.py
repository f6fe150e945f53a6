"""Entries travel once: neither a slow disk nor a lost probe is a reason to send them again."""

from __future__ import annotations

from tests.consensus.script import Script


def play(text: str) -> tuple[Script, list[str]]:
    script = Script()
    said = []
    for command in text.strip().splitlines():
        said += script.run(command)
    return script, said


def test_probe_is_not_sent_twice() -> None:
    # Follower answers match=previous before its disk has the entries; the leader then sends the same entries again.
    _, said = play("""cluster n1 n2 n3
elect n1
propose n1 a b c
deliver
start n4
add-learner n1 n4
deliver""")
    assert sum("n1 → n4 Append" in line and "2/1:a" in line for line in said) == 1


def test_follower_that_was_down_at_the_election_does_not_get_the_whole_log_again() -> None:
    script, said = play("""cluster n1 n2 n3
batch 1000
elect n1
propose n1 a b c d e f g h i j k l m n o p q r s t
deliver
crash n3
transfer n1 n2
deliver
restart n3
propose n2 new""")
    said = script.run("run 14")
    lines = [line for line in said if "n2 → n3 Append" in line or "n2 → n3 Install" in line]
    print("\n".join(lines))
    assert not any("2/1:a" in line for line in lines)
