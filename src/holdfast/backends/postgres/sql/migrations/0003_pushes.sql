-- Ids by a key of 16 bytes, whatever they look like: half the index, and what rises with time is appended at its end.
-- An id that is a UUID is its own key, any other one the first half of its SHA-256 (rows.id_key).
CREATE TABLE holdfast.id_keys (
    topic_id integer NOT NULL,
    partition integer NOT NULL,
    key uuid NOT NULL,
    "offset" bigint NOT NULL,
    inserted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic_id, partition, key)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
INSERT INTO holdfast.id_keys (topic_id, partition, key, "offset", inserted_at)
SELECT
    topic_id, partition,
    CASE WHEN id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' THEN id::uuid
        ELSE encode(substr(sha256(convert_to(id, 'UTF8')), 1, 16), 'hex')::uuid END,
    "offset", inserted_at
FROM holdfast.ids;
CREATE INDEX id_keys_by_age ON holdfast.id_keys (inserted_at);
-- A broker of before, should one still run, cannot store ids where this one does not look: it is refused.
DROP TABLE holdfast.ids;

-- The id of a pushed message. It has no `headers`: they are its transaction_id and its trace_id, and nothing else.
ALTER TABLE holdfast.messages ADD COLUMN id_uuid uuid;

CREATE OR REPLACE VIEW holdfast.queue_messages AS
SELECT
    t.name AS queue,
    m.partition,
    m."offset",
    coalesce(m.id, m.id_uuid::text, m.partition || '-' || m."offset") AS id,
    m.transaction_id,
    m.trace_id,
    holdfast.as_text(m.key) AS key,
    holdfast.as_text(m.value) AS payload,
    m.value AS payload_bytes,
    m.created_at
FROM holdfast.messages m
JOIN holdfast.topics t USING (topic_id);
