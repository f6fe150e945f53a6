-- name: all_topics
SELECT topic_id, name, token, partitions, retention_ms, retention_bytes, created_ms FROM holdfast.topics

-- name: one_topic
SELECT topic_id, name, token, partitions, retention_ms, retention_bytes, created_ms
FROM holdfast.topics WHERE topic_id = $1

-- name: topic_named
SELECT topic_id, name, token, partitions, retention_ms, retention_bytes, created_ms
FROM holdfast.topics WHERE name = $1

-- name: all_partitions
SELECT topic_id, partition, start_offset, next_offset, size_bytes FROM holdfast.partitions

-- name: partitions_of
SELECT topic_id, partition, start_offset, next_offset, size_bytes FROM holdfast.partitions WHERE topic_id = $1

-- name: create_topic
WITH created AS (
    INSERT INTO holdfast.topics (name, token, partitions, retention_ms, retention_bytes, created_ms)
    VALUES ($1, $2, $3, $4, $5, $6)
    ON CONFLICT (name) DO NOTHING
    RETURNING topic_id, partitions
), divided AS (
    INSERT INTO holdfast.partitions (topic_id, partition)
    SELECT topic_id, generate_series(0, partitions - 1) FROM created
)
SELECT topic_id, pg_notify('holdfast', 'topic ' || topic_id) FROM created

-- name: lock_topic
-- Whoever is writing finishes first; whoever comes later finds no partition.
SELECT p.partition FROM holdfast.partitions p WHERE p.topic_id = $1 ORDER BY p.partition FOR UPDATE

-- name: delete_topic
WITH deleted AS (
    DELETE FROM holdfast.topics WHERE topic_id = $1 RETURNING topic_id
), noted AS (
    INSERT INTO holdfast.deleted_topics (topic_id) SELECT topic_id FROM deleted
)
SELECT topic_id, pg_notify('holdfast', 'gone ' || topic_id) FROM deleted
