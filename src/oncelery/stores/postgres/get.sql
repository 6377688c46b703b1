-- get: the job of this id, if it is readable
-- in: id, now (null = server clock)     out: one row, or none
CREATE OR REPLACE FUNCTION get(p_id text, p_now timestamptz) RETURNS SETOF jobs
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
  now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
  RETURN QUERY SELECT * FROM jobs WHERE id = p_id AND (expires_at IS NULL OR expires_at > now);
END $$;
