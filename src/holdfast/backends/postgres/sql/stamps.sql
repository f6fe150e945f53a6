-- name: newest_stamps
SELECT topic_id, partition, coordinator, decision, sequence, "offset"
FROM holdfast.stamps
JOIN unnest($1::integer[], $2::integer[]) AS wanted (topic_id, partition) USING (topic_id, partition)

-- name: keep_stamps
INSERT INTO holdfast.stamps (topic_id, partition, coordinator, decision, sequence, "offset")
SELECT * FROM unnest($1::integer[], $2::integer[], $3::integer[], $4::bigint[], $5::integer[], $6::bigint[])
ON CONFLICT (topic_id, partition, coordinator) DO UPDATE
SET decision = excluded.decision, sequence = excluded.sequence, "offset" = excluded."offset"
