-- reserve: (absent | past retention | buried | cancelled) -> queued; else the job that is there
-- in: now, the submission, 12 on_duplicate, 13 body (missing: none)
-- out: reserved | existing | mismatched, and the job

local on_duplicate, body = ARGV[12], ARGV[13]

local job = readable(known(id))
if job then
  if job.key ~= key or payload_differs(job) then
    return { 'mismatched', told(job) }
  end
  local fresh = job.state == QUEUED and not job.begun_at
  return { fresh and 'reserved' or 'existing', told(job) }
end

local last = last_of(key)
local delay = tonumber(ARGV[9])

if not last or not keeps_key(last) then
  return { 'reserved', told(accept(last and last.fence or '0', delay, body)) }
end

if last.state == COMPLETED or on_duplicate == 'join' or on_duplicate == 'reject' then
  if payload_differs(last) then
    note(last, 'refused')
    return { 'mismatched', told(last) }
  end
  note(last, last.state == COMPLETED and 'replayed' or on_duplicate == 'reject' and 'rejected' or 'joined')
  return { 'existing', told(last) }
end

if on_duplicate == 'trail' then
  if last.begun_at and not last.trail_id then
    local trail = accept(last.fence, delay, body, last.id)
    update(last, { trail_id = id })
    return { 'reserved', told(trail) }
  end
  local waiting = last.trail_id and unfinished(last.trail_id) or last
  if body then
    update(waiting, { body = body, digest = present(digest) or false, amended = '1' })
  end
  note(waiting, 'amended')
  return { 'existing', told(waiting) }
end

-- replace
if last.state == RUNNING or last.trail_id then
  note(last, 'joined')
  return { 'existing', told(last) }
end
last.reason = 'replaced'
finish(last, CANCELLED)
return { 'reserved', told(accept(last.fence, delay, body)) }
