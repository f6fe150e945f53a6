-- Everything a broker needs. The schema itself and its table of versions are made by schema.py.

-- One row, so that brokers know which store they share.
CREATE TABLE holdfast.store (
    store_id uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO holdfast.store DEFAULT VALUES;

-- Numbers are never used again: what is left of a deleted topic cannot be taken for a new one's.
CREATE TABLE holdfast.topics (
    topic_id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    token text NOT NULL,
    partitions integer NOT NULL,
    retention_ms bigint,
    retention_bytes bigint,
    created_ms bigint NOT NULL
);

-- Whoever writes locks its partitions' rows first, in the order of the key. Half of each page stays free, so that an
-- update finds room in its own page and touches no index.
CREATE TABLE holdfast.partitions (
    topic_id integer NOT NULL REFERENCES holdfast.topics ON DELETE CASCADE,
    partition integer NOT NULL,
    start_offset bigint NOT NULL DEFAULT 0,
    next_offset bigint NOT NULL DEFAULT 0,
    size_bytes bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (topic_id, partition)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- headers: the record's header section as it is on the wire (a count, then names and contents), without the id.
-- No foreign key: it would be checked for each row, and the lock on the partition's row says as much.
-- Dead rows are those that retention deleted, all of them old and side by side: vacuum gives whole pages back for
-- what comes next, as soon as there are some.
CREATE TABLE holdfast.messages (
    topic_id integer NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    created_at timestamptz NOT NULL,
    id text,
    key bytea,
    value bytea NOT NULL,
    headers bytea,
    transaction_id text,
    trace_id text,
    PRIMARY KEY (topic_id, partition, "offset")
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 20000,
        autovacuum_vacuum_insert_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0);

-- The ids that are recognised when a message is sent again.
CREATE TABLE holdfast.ids (
    topic_id integer NOT NULL,
    partition integer NOT NULL,
    id text NOT NULL,
    "offset" bigint NOT NULL,
    inserted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (topic_id, partition, id)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX ids_by_age ON holdfast.ids USING brin (inserted_at) WITH (pages_per_range = 16, autosummarize = on);

-- Every move has a number, so that a broker that hears of two knows which one was later.
CREATE SEQUENCE holdfast.cursor_moves;
CREATE TABLE holdfast.cursors (
    topic_id integer NOT NULL REFERENCES holdfast.topics ON DELETE CASCADE,
    name text NOT NULL,
    partition integer NOT NULL,
    position bigint NOT NULL,
    move bigint NOT NULL,
    PRIMARY KEY (topic_id, name, partition)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- The last transaction of each writer: tells what became of one whose answer was lost.
CREATE TABLE holdfast.writers (
    writer_id uuid PRIMARY KEY,
    number bigint NOT NULL DEFAULT 0,
    written_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- The brokers there are. One that is not seen for a while is gone, and what it held is free.
CREATE TABLE holdfast.brokers (
    broker_id uuid PRIMARY KEY,
    name text NOT NULL,
    addresses text NOT NULL,
    processes boolean NOT NULL,
    seen_at timestamptz NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- Which broker processes a partition; the number rises with every change.
CREATE TABLE holdfast.reigns (
    topic_id integer NOT NULL REFERENCES holdfast.topics ON DELETE CASCADE,
    partition integer NOT NULL,
    reign bigint NOT NULL,
    broker_id uuid,
    PRIMARY KEY (topic_id, partition)
);

-- Topics that are deleted and whose rows are not all gone yet.
CREATE TABLE holdfast.deleted_topics (
    topic_id integer PRIMARY KEY
);

-- A value as text where it is text; NULL where it is not.
CREATE FUNCTION holdfast.as_text(value bytea) RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
BEGIN
    RETURN convert_from(value, 'UTF8');
EXCEPTION WHEN character_not_in_repertoire OR untranslatable_character THEN
    RETURN NULL;
END
$$;

CREATE VIEW holdfast.queue_messages AS
SELECT
    t.name AS queue,
    m.partition,
    m."offset",
    coalesce(m.id, m.partition || '-' || m."offset") AS id,
    m.transaction_id,
    m.trace_id,
    holdfast.as_text(m.key) AS key,
    holdfast.as_text(m.value) AS payload,
    m.value AS payload_bytes,
    m.created_at
FROM holdfast.messages m
JOIN holdfast.topics t USING (topic_id);
