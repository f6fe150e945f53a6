-- name: all_cursors
SELECT topic_id, name, partition, position, move FROM holdfast.cursors

-- name: move_cursors
-- A reader's own progress never goes backwards, whichever broker brings it. A topic that is gone has no row here.
WITH wanted AS (
    SELECT w.*
    FROM unnest($1::integer[], $2::text[], $3::integer[], $4::bigint[], $5::boolean[])
        AS w (topic_id, name, partition, position, only_forward)
    JOIN holdfast.topics USING (topic_id)
    ORDER BY w.topic_id, w.name, w.partition
), moved AS (
    INSERT INTO holdfast.cursors AS c (topic_id, name, partition, position, move)
    SELECT topic_id, name, partition, position, nextval('holdfast.cursor_moves') FROM wanted
    ON CONFLICT (topic_id, name, partition) DO UPDATE SET
        move = nextval('holdfast.cursor_moves'),
        position = CASE
            WHEN (SELECT only_forward FROM wanted w
                  WHERE w.topic_id = c.topic_id AND w.name = c.name AND w.partition = c.partition)
            THEN greatest(c.position, excluded.position)
            ELSE excluded.position
        END
    RETURNING topic_id, name, partition, position, move
)
SELECT topic_id, name, partition, position, move,
    pg_notify('holdfast', format('cursor %s %s %s %s %s', topic_id, name, partition, position, move))
FROM moved

-- name: take_cursor
-- Moves a position if it stands where its taker read it ($4; NULL is nowhere), else not. No row: somebody was faster.
WITH taken AS (
    INSERT INTO holdfast.cursors AS c (topic_id, name, partition, position, move)
    SELECT $1, $2, $3, $5::bigint, nextval('holdfast.cursor_moves') FROM holdfast.topics WHERE topic_id = $1
    ON CONFLICT (topic_id, name, partition) DO UPDATE
    SET position = excluded.position, move = nextval('holdfast.cursor_moves')
    WHERE c.position = $4::bigint
    RETURNING position, move
)
SELECT move, pg_notify('holdfast', format('cursor %s %s %s %s %s', $1::integer, $2::text, $3::integer, position, move))
FROM taken

-- name: draw_cursor
-- Gives readers what comes next, in their order (migrations/0007_repeats.sql).
SELECT firsts, drawn, repeats, new_position, new_move FROM holdfast.draw($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)

-- name: delete_cursor
WITH deleted AS (
    DELETE FROM holdfast.cursors WHERE topic_id = $1 AND name = $2 RETURNING partition
), numbered AS (
    SELECT nextval('holdfast.cursor_moves') AS move FROM (SELECT count(*) FROM deleted) AS counted
)
SELECT move, pg_notify('holdfast', format('nocursor %s %s %s', $1::integer, $2::text, move)) FROM numbered
