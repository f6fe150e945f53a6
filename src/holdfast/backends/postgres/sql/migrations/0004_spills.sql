-- The time, in milliseconds, of the oldest message that a broker keeps until the database takes it (its spill).
ALTER TABLE holdfast.brokers ADD COLUMN spilled_since bigint;
