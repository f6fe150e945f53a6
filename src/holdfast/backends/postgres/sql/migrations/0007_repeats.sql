-- Whoever draws is told whether the same request had drawn before, and may have it remembered that there was nothing to be
-- had. Otherwise the function is that of 0006_draws.sql.
DROP FUNCTION holdfast.draw(integer, text, integer, bigint, bigint, text[], text[], integer[], integer);

CREATE FUNCTION holdfast.draw(
    in_topic integer, in_name text, in_partition integer, start_offset bigint, end_offset bigint,
    readers text[], requests text[], counts integer[], readers_max integer, notes_nothing boolean,
    OUT firsts bigint[], OUT drawn integer[], OUT repeats boolean[], OUT new_position bigint, OUT new_move bigint
) LANGUAGE plpgsql AS $$
DECLARE
    position_before bigint;
    stands_at bigint;
    last record;
    take bigint;
    is_made boolean := false;
    is_noted boolean := false;
BEGIN
    firsts := '{}';
    drawn := '{}';
    repeats := '{}';
    SELECT c.position INTO position_before FROM holdfast.cursors c
        WHERE c.topic_id = in_topic AND c.name = in_name AND c.partition = in_partition FOR UPDATE;
    IF NOT FOUND AND (start_offset < end_offset OR notes_nothing) THEN
        -- Whoever comes at the same time waits here, and then finds the row of whoever was first.
        INSERT INTO holdfast.cursors (topic_id, name, partition, position, move)
            SELECT in_topic, in_name, in_partition, start_offset, nextval('holdfast.cursor_moves')
            FROM holdfast.topics WHERE topic_id = in_topic
            ON CONFLICT DO NOTHING;
        is_made := FOUND;
        SELECT c.position INTO position_before FROM holdfast.cursors c
            WHERE c.topic_id = in_topic AND c.name = in_name AND c.partition = in_partition FOR UPDATE;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END IF;
    stands_at := greatest(coalesce(position_before, start_offset), start_offset);
    new_position := stands_at;
    FOR i IN 1 .. coalesce(array_length(readers, 1), 0) LOOP
        SELECT d.request, d.first, d.count INTO last FROM holdfast.draws d
            WHERE d.topic_id = in_topic AND d.name = in_name AND d.partition = in_partition AND d.reader = readers[i];
        IF FOUND AND last.request = requests[i] THEN
            firsts := firsts || last.first;
            drawn := drawn || last.count;
            repeats := repeats || true;
            CONTINUE;
        ELSIF FOUND AND requests[i] ~ '^(0|[1-9][0-9]*)$' AND last.request ~ '^(0|[1-9][0-9]*)$'
            AND requests[i]::numeric < last.request::numeric THEN
            firsts := firsts || (-1)::bigint;
            drawn := drawn || 0;
            repeats := repeats || false;
            CONTINUE;
        END IF;
        take := greatest(least(counts[i], end_offset - new_position), 0);
        IF take = 0 AND NOT notes_nothing THEN
            firsts := firsts || 0::bigint;
            drawn := drawn || 0;
            repeats := repeats || false;
            CONTINUE;
        END IF;
        INSERT INTO holdfast.draws AS d (topic_id, name, partition, reader, request, first, count, move)
            VALUES (in_topic, in_name, in_partition, readers[i], requests[i],
                    CASE WHEN take > 0 THEN new_position ELSE 0 END, take, nextval('holdfast.cursor_moves'))
            ON CONFLICT (topic_id, name, partition, reader) DO UPDATE
            SET request = excluded.request, first = excluded.first, count = excluded.count, move = excluded.move;
        is_noted := true;
        firsts := firsts || CASE WHEN take > 0 THEN new_position ELSE 0 END;
        drawn := drawn || take::integer;
        repeats := repeats || false;
        new_position := new_position + take;
    END LOOP;
    IF is_noted THEN
        DELETE FROM holdfast.draws d USING (
            SELECT o.reader FROM holdfast.draws o
            WHERE o.topic_id = in_topic AND o.name = in_name AND o.partition = in_partition
            ORDER BY o.move DESC OFFSET readers_max
        ) AS old
        WHERE d.topic_id = in_topic AND d.name = in_name AND d.partition = in_partition AND d.reader = old.reader;
    END IF;
    IF new_position = stands_at AND NOT is_made THEN
        new_position := NULL;
        RETURN;
    END IF;
    UPDATE holdfast.cursors c SET position = new_position, move = nextval('holdfast.cursor_moves')
        WHERE c.topic_id = in_topic AND c.name = in_name AND c.partition = in_partition RETURNING c.move INTO new_move;
    PERFORM pg_notify('holdfast',
        format('cursor %s %s %s %s %s', in_topic, in_name, in_partition, new_position, new_move));
END
$$;
