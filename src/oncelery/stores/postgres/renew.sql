-- renew: running -> running, a later end of the lease, for each that is still ours
-- in: one array each of ids, holders, fences, durations; now (null = server clock)
-- out: a row for each, in order: whether it is ours, the lease's end, whether a cancel is requested, the job's state
--
-- Touches no indexed column, so that a renewal leaves the indexes alone: next_check only goes down, when the sweeper had
-- put it off beyond the new lease.
CREATE OR REPLACE FUNCTION renew(
  p_ids text[], p_holders text[], p_fences bigint[], p_durations interval[], p_now timestamptz
) RETURNS TABLE (ours boolean, until timestamptz, cancel_requested boolean, state text)
LANGUAGE plpgsql SET search_path FROM CURRENT SET lock_timeout = '1s' AS $$
DECLARE
  now timestamptz;
  v_held text[];
BEGIN
  BEGIN
    v_held := ARRAY(
      SELECT job.id FROM jobs AS job
      JOIN unnest(p_ids, p_holders, p_fences) AS lease (id, holder, fence) USING (id, holder, fence)
      WHERE job.state = 'running' ORDER BY job.id FOR UPDATE OF job
    );
  EXCEPTION WHEN lock_not_available THEN
    -- A user's transaction that has settled its job, and goes on, must not let the other leases of the process lapse.
    -- Its own stands as it was.
    v_held := ARRAY(
      SELECT job.id FROM jobs AS job
      JOIN unnest(p_ids, p_holders, p_fences) AS lease (id, holder, fence) USING (id, holder, fence)
      WHERE job.state = 'running' ORDER BY job.id FOR UPDATE OF job SKIP LOCKED
    );
  END;
  now := coalesce(p_now, clock_timestamp());

  RETURN QUERY
  WITH lease AS (
    SELECT * FROM unnest(p_ids, p_holders, p_fences, p_durations) WITH ORDINALITY
      AS lease (id, holder, fence, duration, place)
  ), renewed AS (
    UPDATE jobs AS job SET
      lease_until = greatest(job.lease_until, now + lease.duration),
      next_check = least(job.next_check, greatest(job.lease_until, now + lease.duration))
    FROM lease WHERE job.id = lease.id AND job.id = ANY (v_held)
    RETURNING job.id, job.lease_until
  )
  SELECT
    job.state = 'running' AND job.holder = lease.holder AND job.fence = lease.fence,
    coalesce(renewed.lease_until, job.lease_until), job.cancel_requested, job.state
  FROM lease
  LEFT JOIN jobs AS job ON job.id = lease.id AND (job.expires_at IS NULL OR job.expires_at > now)
  LEFT JOIN renewed ON renewed.id = lease.id
  ORDER BY lease.place;
END $$;
