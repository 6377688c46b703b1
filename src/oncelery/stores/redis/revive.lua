-- revive: buried -> queued, with its counters cleared
-- in: now, 2 id, 3 body (missing: as before)
-- out: revived | existing | not_buried, and the job | absent

--include shared.lua
--include reading.lua
--include ending.lua
--include changes.lua
local body = ARGV[3]

local job = readable(known(ARGV[2]))
if not job then
  return { 'absent' }
elseif job.state ~= BURIED then
  return { 'not_buried', told(job) }
end
local last = last_of(job.key)
if last and keeps_key(last) then
  return { 'existing', told(last) }
end

if body then
  call('SET', ns .. 'body:' .. job.id, body)
  job.amended = '1'
end
update(job, {
  amended = job.amended,
  attempt = '0',
  crashes = false,
  interrupted = false,
  received = false,
  reason = false,
  error = false,
  settled_at = false,
  cancel_reason = false,
  fence = math.max(job.fence, last and last.fence or 0),
  -- Whatever went before it or came after it has ended since.
  behind = false,
  trail_id = false,
})
queue(job, 0)
call('HSET', bucket('keys', job.key), job.key, job.id)
return { 'revived', told(job) }
