-- name: read
-- The rows between two offsets, up to so many bytes; the first one always.
SELECT "offset", created_at, plain, value, key, headers, id, transaction_id, trace_id
FROM (
    SELECT
        "offset", created_at, value, key, headers, coalesce(id, id_uuid::text) AS id, transaction_id, trace_id,
        id IS NULL AND id_uuid IS NULL AND key IS NULL AND headers IS NULL AS plain,
        sum(octet_length(value) + coalesce(octet_length(headers), 0) + coalesce(octet_length(key), 0))
            OVER (ORDER BY "offset" ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
    FROM (
        SELECT "offset", created_at, value, key, headers, id, id_uuid, transaction_id, trace_id
        FROM holdfast.messages
        WHERE topic_id = $1 AND partition = $2 AND "offset" >= $3 AND "offset" < $4
    ) AS rows
) AS counted
WHERE bytes_before IS NULL OR bytes_before < $5
ORDER BY "offset"

-- name: offset_at
-- Halves the partition until it has the place: as exact as the times of its messages rise with their offsets. The limit
-- is for the planner: one look into the index for each half.
WITH RECURSIVE halving (low, high) AS (
    SELECT start_offset, next_offset FROM holdfast.partitions WHERE topic_id = $1 AND partition = $2
    UNION ALL
    SELECT
        CASE WHEN m.created_at < $3 THEN (low + high) / 2 + 1 ELSE low END,
        CASE WHEN m.created_at < $3 THEN high ELSE (low + high) / 2 END
    FROM halving
    CROSS JOIN LATERAL (
        SELECT created_at FROM holdfast.messages
        WHERE topic_id = $1 AND partition = $2 AND "offset" = (low + high) / 2
        LIMIT 1
    ) AS m
    WHERE low < high
)
SELECT low FROM halving ORDER BY high - low LIMIT 1

-- name: partition_states
SELECT p.topic_id, p.partition, p.start_offset, p.next_offset, p.size_bytes, r.reign, r.broker_id
FROM holdfast.partitions p
JOIN unnest($1::integer[], $2::integer[]) AS wanted (topic_id, partition) USING (topic_id, partition)
LEFT JOIN holdfast.reigns r USING (topic_id, partition)
