-- name: spills_of_others
-- How many lines of this broker's file are stored. Then for each other broker that keeps messages: its oldest one, and
-- the chunks it offers. Then brokers that were there when this one lost the database and were not seen again since it
-- is back. $1, $2: this broker and its file. $3: the lease; $4, $5: seconds since the last beat before the outage, and
-- since the first one after it. $6: this broker's name: an earlier life of its own is not waited for.
SELECT
    (SELECT number FROM holdfast.writers WHERE writer_id = $2) AS done,
    found.*
FROM (SELECT) AS one
LEFT JOIN (
    SELECT
        b.broker_id, b.name, CASE WHEN b.is_live THEN b.spilled_since END AS spilled_since, b.is_missing,
        c.file, c.first_line, c.end_line, c.newest_ms, w.number
    FROM (
        SELECT
            broker_id, name, spilled_since,
            seen_at > clock_timestamp() - $3::double precision * interval '1 second'
                AND NOT (name = $6 AND seen_at < clock_timestamp() - $5::double precision * interval '1 second')
                AS is_live,
            seen_at > clock_timestamp() - ($4::double precision + $3) * interval '1 second'
                AND seen_at < clock_timestamp() - $5::double precision * interval '1 second'
                AND name <> $6 AS is_missing
        FROM holdfast.brokers WHERE broker_id <> $1
    ) AS b
    LEFT JOIN holdfast.spill_chunks c ON c.broker_id = b.broker_id AND b.is_live
    LEFT JOIN holdfast.writers w ON w.writer_id = c.file
    WHERE b.is_missing OR (b.is_live AND b.spilled_since IS NOT NULL)
) AS found ON true
ORDER BY found.broker_id, found.first_line

-- name: offer_chunk
-- Chunks of an earlier file, and those that are stored, go.
WITH oldest AS (
    UPDATE holdfast.brokers SET spilled_since = $7 WHERE broker_id = $1
), gone AS (
    DELETE FROM holdfast.spill_chunks
    WHERE broker_id = $1 AND (file <> $2 OR end_line <= $8 OR first_line >= $3)
        AND (file, first_line) <> ($2, $3::bigint)
)
INSERT INTO holdfast.spill_chunks (broker_id, file, first_line, end_line, newest_ms, lines)
SELECT $1, $2, $3, $4, $5, $6 FROM holdfast.brokers WHERE broker_id = $1
ON CONFLICT (broker_id, file, first_line) DO UPDATE
SET end_line = excluded.end_line, newest_ms = excluded.newest_ms, lines = excluded.lines

-- name: withdraw_chunks
DELETE FROM holdfast.spill_chunks WHERE broker_id = $1

-- name: chunk_lines
SELECT lines FROM holdfast.spill_chunks WHERE broker_id = $1 AND file = $2 AND first_line = $3 AND end_line = $4

-- name: finish_chunks
-- Other brokers' lines that this transaction stores, by file: from which line on, and up to which. Always in the order
-- of the files. Fewer rows come back where somebody else has stored some of them.
WITH wanted AS (
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS w (writer_id, number_before, number)
), locked AS (
    SELECT writer_id FROM holdfast.writers WHERE writer_id = ANY ($1::uuid[]) ORDER BY writer_id FOR UPDATE
)
UPDATE holdfast.writers w SET number = wanted.number, written_at = now()
FROM wanted, locked
WHERE w.writer_id = wanted.writer_id AND locked.writer_id = w.writer_id AND w.number = wanted.number_before
RETURNING w.writer_id

-- name: clean_chunks
-- Chunks come and go quickly, and the next run of autovacuum may be a minute away.
VACUUM (SKIP_LOCKED) holdfast.spill_chunks
