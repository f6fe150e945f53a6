-- Lines of spilled files that their brokers let others store, so that one of them can merge all by time.

-- They are copies of what stands in the files: after a crash of the database there are none, and brokers offer them anew.
CREATE UNLOGGED TABLE holdfast.spill_chunks (
    broker_id uuid NOT NULL REFERENCES holdfast.brokers ON DELETE CASCADE,
    file uuid NOT NULL,
    first_line bigint NOT NULL,
    end_line bigint NOT NULL,
    newest_ms bigint NOT NULL,
    lines bytea NOT NULL,
    PRIMARY KEY (broker_id, file, first_line)
);
-- They are read once, a moment later.
ALTER TABLE holdfast.spill_chunks ALTER COLUMN lines SET STORAGE EXTERNAL;
