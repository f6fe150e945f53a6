-- name: expired_by_age
-- Of the oldest messages, the first that is to stay; NULL where none of them is.
SELECT "offset" FROM (
    SELECT "offset", created_at FROM holdfast.messages
    WHERE topic_id = $1 AND partition = $2 AND "offset" >= $3 AND "offset" < $3 + $5::bigint
) AS oldest
WHERE created_at >= $4 ORDER BY "offset" LIMIT 1

-- name: expired_by_size
-- Of the oldest messages, the first without which less would be left than may stay.
SELECT "offset" FROM (
    SELECT "offset",
        sum(octet_length(value) + coalesce(octet_length(key), 0) + coalesce(octet_length(headers), 0))
            OVER (ORDER BY "offset") AS bytes
    FROM holdfast.messages
    WHERE topic_id = $1 AND partition = $2 AND "offset" >= $3 AND "offset" < $3 + $5::bigint
) AS oldest
WHERE bytes > $4 ORDER BY "offset" LIMIT 1

-- name: expire
-- Deletes a stretch from the start of a partition, and moves the start: readers never find a hole.
WITH start AS (
    SELECT topic_id, partition FROM holdfast.partitions
    WHERE topic_id = $1 AND partition = $2 AND start_offset = $3
    FOR UPDATE
), deleted AS (
    DELETE FROM holdfast.messages m USING start
    WHERE m.topic_id = start.topic_id AND m.partition = start.partition AND m."offset" >= $3 AND m."offset" < $4
    RETURNING octet_length(m.value) + coalesce(octet_length(m.key), 0) + coalesce(octet_length(m.headers), 0) AS bytes
), summed AS (
    SELECT count(*) AS messages, coalesce(sum(bytes), 0) AS bytes FROM deleted
), moved AS (
    UPDATE holdfast.partitions p
    SET start_offset = $4, size_bytes = greatest(0, p.size_bytes - summed.bytes)
    FROM start, summed
    WHERE p.topic_id = start.topic_id AND p.partition = start.partition
    RETURNING p.start_offset, p.size_bytes
)
SELECT summed.messages, moved.start_offset, moved.size_bytes,
    pg_notify('holdfast', 'start ' || $1::integer || ' ' || $2::integer || ' ' || moved.start_offset)
FROM moved, summed

-- name: prune_ids
DELETE FROM holdfast.id_keys WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast.id_keys WHERE inserted_at < now() - $1::bigint * interval '1 millisecond'
    ORDER BY inserted_at LIMIT $2
))

-- name: deleted_topics
SELECT topic_id FROM holdfast.deleted_topics

-- name: sweep_messages
-- So many, up to so many bytes; the first one always.
DELETE FROM holdfast.messages WHERE ctid = ANY (ARRAY(
    SELECT place FROM (
        SELECT
            place,
            sum(bytes) OVER (ORDER BY partition, "offset" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
                AS bytes_before
        FROM (
            SELECT
                ctid AS place, partition, "offset",
                octet_length(value) + coalesce(octet_length(key), 0) + coalesce(octet_length(headers), 0) AS bytes
            FROM holdfast.messages
            WHERE topic_id = $1 ORDER BY topic_id, partition, "offset" LIMIT $2
        ) AS oldest
    ) AS counted
    WHERE bytes_before IS NULL OR bytes_before < $3::bigint
))

-- name: sweep_ids
DELETE FROM holdfast.id_keys WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM holdfast.id_keys WHERE topic_id = $1 ORDER BY topic_id, partition, key LIMIT $2
))

-- name: swept
-- Only if nothing is left: what another broker is deleting this very moment was passed over, and that may still fail. The
-- order is for the planner: one look into each index.
DELETE FROM holdfast.deleted_topics WHERE topic_id = $1
AND (SELECT topic_id FROM holdfast.messages WHERE topic_id = $1
     ORDER BY topic_id, partition, "offset" LIMIT 1) IS NULL
AND (SELECT topic_id FROM holdfast.id_keys WHERE topic_id = $1
     ORDER BY topic_id, partition, key LIMIT 1) IS NULL
