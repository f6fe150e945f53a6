-- name: store_id
SELECT store_id FROM holdfast.store

-- name: say
SELECT pg_notify('holdfast', $1)

-- name: beat
-- The broker says that it is there, and hears by its own notice that it would hear of others.
WITH seen AS (
    INSERT INTO holdfast.brokers (broker_id, name, addresses, processes, coordinates, spilled_since, seen_at)
    VALUES ($1, $2, $3, $4, $5, $7, clock_timestamp())
    ON CONFLICT (broker_id) DO UPDATE
    SET addresses = excluded.addresses, processes = excluded.processes, coordinates = excluded.coordinates,
        spilled_since = excluded.spilled_since, seen_at = excluded.seen_at
)
SELECT pg_notify('holdfast', $6)

-- name: live_brokers
SELECT broker_id, name, addresses, processes, coordinates FROM holdfast.brokers
WHERE seen_at > clock_timestamp() - $1::double precision * interval '1 second'
ORDER BY name, broker_id

-- name: brokers_named
-- Others of this broker's name, and when each was last seen. One that was killed stays for a lease.
SELECT broker_id, addresses, seen_at FROM holdfast.brokers
WHERE name = $1 AND broker_id <> $2
    AND seen_at > clock_timestamp() - $3::double precision * interval '1 second'

-- name: oldest_spill_of_others
-- Whom this broker waits for, by name and address.
SELECT name, addresses FROM holdfast.brokers
WHERE broker_id <> $1 AND spilled_since IS NOT NULL
    AND seen_at > clock_timestamp() - $2::double precision * interval '1 second'
ORDER BY spilled_since LIMIT 1

-- name: leave
WITH released AS (
    UPDATE holdfast.reigns SET broker_id = NULL WHERE broker_id = $1
), left_ AS (
    DELETE FROM holdfast.brokers WHERE broker_id = $1
), done AS (
    DELETE FROM holdfast.writers WHERE writer_id = $2
)
SELECT pg_notify('holdfast', 'left ' || $1::uuid)

-- name: forget_brokers
WITH gone AS (
    DELETE FROM holdfast.brokers WHERE seen_at < now() - interval '1 hour'
)
-- The row of a writer says what became of a transaction that a spill asks for, be it months later.
DELETE FROM holdfast.writers WHERE written_at < now() - interval '1 year'

-- name: assign_alone
-- One broker at a time looks at who holds what.
SELECT pg_advisory_xact_lock(4803, 1)

-- name: release_reigns
-- What is more than this broker's share, the newest first: in the order of `Holding._take_share`.
UPDATE holdfast.reigns r SET broker_id = NULL
FROM (
    SELECT topic_id, partition FROM holdfast.reigns JOIN holdfast.topics USING (topic_id)
    WHERE broker_id = $1 AND starts_with(name, $3) = $4
    ORDER BY CASE WHEN $4 THEN partition ELSE 0 END, topic_id, partition OFFSET $2
) AS extra
WHERE r.topic_id = extra.topic_id AND r.partition = extra.partition

-- name: claim_reigns
-- What nobody holds, or somebody who is not there any more, up to this broker's share, of internal topics or of others.
-- Partitions of internal topics that have one number belong together.
INSERT INTO holdfast.reigns AS r (topic_id, partition, reign, broker_id)
SELECT p.topic_id, p.partition, 1, $1
FROM holdfast.partitions p
JOIN holdfast.topics t USING (topic_id)
LEFT JOIN holdfast.reigns held USING (topic_id, partition)
WHERE starts_with(t.name, $4) = $5 AND (held.broker_id IS NULL OR held.broker_id <> ALL ($2::uuid[]))
ORDER BY CASE WHEN $5 THEN p.partition ELSE 0 END, p.topic_id, p.partition
LIMIT $3
ON CONFLICT (topic_id, partition) DO UPDATE SET reign = r.reign + 1, broker_id = excluded.broker_id

-- name: held_reigns
SELECT r.topic_id, r.partition, r.reign, p.start_offset, p.next_offset, p.size_bytes, t.name
FROM holdfast.reigns r JOIN holdfast.partitions p USING (topic_id, partition) JOIN holdfast.topics t USING (topic_id)
WHERE r.broker_id = $1

-- name: count_partitions
SELECT count(*) FROM holdfast.partitions JOIN holdfast.topics USING (topic_id) WHERE starts_with(name, $1) = $2
