-- What a range of pages once held widens its entry in a BRIN index for good: as soon as pages were used again, finding
-- the ids that are too old read the whole table. All ids of a transaction have one time, so that this is small, too.
DROP INDEX holdfast.ids_by_age;
CREATE INDEX ids_by_age ON holdfast.ids (inserted_at);
