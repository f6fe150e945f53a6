-- What transactions need.

-- The newest stamp of each coordinator in a partition (src/holdfast/wire/stamps.py): which batches of which commit are
-- there. A row for each partition of the topic of commits at most, so nothing here is ever too old.
CREATE TABLE holdfast.stamps (
    topic_id integer NOT NULL REFERENCES holdfast.topics ON DELETE CASCADE,
    partition integer NOT NULL,
    coordinator integer NOT NULL,
    decision bigint NOT NULL,
    sequence integer NOT NULL,
    "offset" bigint NOT NULL,
    PRIMARY KEY (topic_id, partition, coordinator)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000);

-- Whether a broker takes part in what is done for internal topics.
ALTER TABLE holdfast.brokers ADD COLUMN coordinates boolean NOT NULL DEFAULT false;
