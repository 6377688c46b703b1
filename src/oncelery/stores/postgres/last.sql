-- last: the newest job of this key, if it is readable
-- in: key, now (null = server clock)     out: one row, or none
CREATE OR REPLACE FUNCTION last(p_key text, p_now timestamptz) RETURNS SETOF jobs
LANGUAGE plpgsql STABLE SET search_path FROM CURRENT SET enable_seqscan = off AS $$
DECLARE
  now timestamptz := coalesce(p_now, clock_timestamp());
BEGIN
  RETURN QUERY SELECT * FROM jobs WHERE key = p_key AND newest AND (expires_at IS NULL OR expires_at > now);
END $$;
