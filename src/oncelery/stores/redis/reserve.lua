-- reserve: (absent | past retention | buried | cancelled) -> queued; else the job that is there
-- in: now, the submission (see accept.lua), 12 on_duplicate, 13 body (missing: none)
-- out: accepted, now, fence, the job it waits behind | reserved | existing | mismatched, and the job

--include shared.lua
--include reading.lua
--include ending.lua
--include changes.lua
local id, on_duplicate, body = ARGV[2], ARGV[12], ARGV[13]
--include accept.lua
local delay = tonumber(ARGV[9])

local job = known(id)
if readable(job) then
  if job.key ~= key then
    return { 'mismatched', told(job) }
  end
  local fresh = job.state == QUEUED and not job.begun_at
  return { fresh and 'reserved' or 'existing', told(job) }
end

local last = last_of(key)

if not last or not keeps_key(last) then
  accept(job, last, delay, body)
  return { 'accepted', at, last and last.fence or '0', '' }
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
    accept(job, last, delay, body, last.id)
    update(last, { trail_id = id })
    return { 'accepted', at, last.fence, last.id }
  end
  local waiting = last.trail_id and unfinished(last.trail_id) or last
  if body then
    call('SET', ns .. 'body:' .. waiting.id, body)
    update(waiting, { digest = present(digest) or false, amended = '1' })
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
accept(job, last, delay, body)
return { 'accepted', at, last.fence, '' }
