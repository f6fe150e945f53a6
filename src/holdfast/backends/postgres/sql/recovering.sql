-- name: stored_lines
-- Waits for a broker's transaction that nobody listens to any more.
SELECT writer_id, number FROM holdfast.writers WHERE writer_id = ANY ($1::uuid[]) FOR UPDATE

-- name: writer_number
SELECT number FROM holdfast.writers WHERE writer_id = $1

-- name: end_recovery
-- The files are stored, and so is that they are: all of their lines, however many these may be.
WITH files AS (
    INSERT INTO holdfast.writers (writer_id, number) SELECT file, $3::bigint FROM unnest($2::uuid[]) AS file
    ON CONFLICT (writer_id) DO UPDATE SET number = excluded.number, written_at = now()
)
UPDATE holdfast.writers SET number = 1, written_at = now() WHERE writer_id = $1

-- name: make_known_ids
CREATE TEMPORARY TABLE IF NOT EXISTS recovery_known (key uuid PRIMARY KEY)

-- name: clear_known_ids
TRUNCATE recovery_known

-- name: gather_known_ids
-- Ids are remembered for minutes only; messages that were stored around the time of the backlog have theirs.
INSERT INTO recovery_known (key)
SELECT coalesce(m.id_uuid, CASE WHEN m.id ~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$' THEN m.id::uuid
    ELSE encode(substr(sha256(convert_to(m.id, 'UTF8')), 1, 16), 'hex')::uuid END)
FROM holdfast.messages m
WHERE m.topic_id = $1 AND m.partition = $2 AND m."offset" >= $3 AND (m.id IS NOT NULL OR m.id_uuid IS NOT NULL)
ON CONFLICT DO NOTHING

-- name: known_of_recovery
SELECT key FROM recovery_known WHERE key = ANY (string_to_array($1::text, E'\n')::uuid[])
