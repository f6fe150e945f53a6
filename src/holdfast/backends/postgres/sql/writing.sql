-- name: register_writer
-- Waits for a transaction of this writer that nobody listens to any more.
INSERT INTO holdfast.writers (writer_id) VALUES ($1)
ON CONFLICT (writer_id) DO UPDATE SET written_at = now()
RETURNING number

-- name: last_written
-- Waits for a transaction that nobody listens to any more, and says whether it was committed.
SELECT number FROM holdfast.writers WHERE writer_id = $1 FOR UPDATE

-- name: lock_partitions
-- Always in the order of the key, so that two brokers cannot wait for each other.
SELECT p.topic_id, p.partition, p.next_offset
FROM holdfast.partitions p
JOIN unnest($1::integer[], $2::integer[]) AS wanted (topic_id, partition) USING (topic_id, partition)
ORDER BY p.topic_id, p.partition
FOR UPDATE OF p

-- name: known_ids
-- The keys of each partition come as lines of one text, in their order: an array costs more to send, and one look into
-- the index finds all that stand side by side. What is older than the window is told as such, whether it was pruned yet or
-- not. The limit is for the planner: that index, also of a table that it knows nothing of yet.
SELECT wanted.topic_id, wanted.partition, found.key, found."offset",
    found.inserted_at > now() - $4::bigint * interval '1 millisecond' AS counts
FROM unnest($1::integer[], $2::integer[], $3::text[]) AS wanted (topic_id, partition, lines)
CROSS JOIN LATERAL (
    SELECT ids.key, ids."offset", ids.inserted_at FROM holdfast.id_keys AS ids
    WHERE ids.topic_id = wanted.topic_id AND ids.partition = wanted.partition
        AND ids.key = ANY (string_to_array(wanted.lines, E'\n')::uuid[])
    LIMIT 1000000
) AS found

-- name: forget_ids
-- They are used again, for other messages.
DELETE FROM holdfast.id_keys AS ids
USING unnest($1::integer[], $2::integer[], $3::uuid[]) AS old (topic_id, partition, key)
WHERE ids.topic_id = old.topic_id AND ids.partition = old.partition AND ids.key = old.key

-- name: finish
-- The last step before the commit. No row comes back where the writer is not registered any more, or is not where it was
-- expected to be: somebody else stores a copy of the same file. The ends of many partitions do not fit into one notice.
WITH wanted AS (
    SELECT * FROM unnest($1::integer[], $2::integer[], $3::bigint[], $4::bigint[])
    AS w (topic_id, partition, next_offset, bytes)
), advanced AS (
    UPDATE holdfast.partitions p
    SET next_offset = wanted.next_offset, size_bytes = p.size_bytes + wanted.bytes
    FROM wanted
    WHERE p.topic_id = wanted.topic_id AND p.partition = wanted.partition
)
UPDATE holdfast.writers SET number = $6, written_at = now()
WHERE writer_id = $5 AND ($8::bigint IS NULL OR coalesce(number, 0) = $8)
RETURNING (SELECT count(pg_notify('holdfast', notice)) FROM unnest($7::text[]) AS notice)
