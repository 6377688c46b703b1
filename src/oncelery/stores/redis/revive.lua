-- revive: buried -> queued, with its counters cleared
--         buried -> cancelled, and another job (absent) -> queued
-- in: now, the submission of another job in its place (see parts/accept.lua; an empty id: none), 6 id,
--     7 body, of the other job if there is one (missing: as before)
-- out: revived | resubmitted | existing | not_buried, and the job | absent

--include parts/shared.lua
--include parts/accept.lua
--include parts/reading.lua
--include parts/ending.lua
--include parts/changes.lua
--include parts/alias.lua
local body = ARGV[7]

local job = readable(known(ARGV[6]))
if not job then
  return { 'absent' }
elseif job.state ~= BURIED then
  return { 'not_buried', told(job) }
end
local resubmits = id ~= ''
local old = resubmits and known(id)
if readable(old) then
  return { 'existing', told(old) }
end
local last = last_of(resubmits and key or job.key)
if last and keeps_key(last) then
  return { 'existing', told(last) }
end

if resubmits then
  accept(last, old, body)
  cancel_buried(job, 'revived as ' .. offer[7])
  return { 'resubmitted', told(unfinished(id)) }
end

if body then
  call('SET', ns .. 'body:' .. job.id, body)
  job.amended = '1'
end
local past = past_of(job)
local noted = #past > 0 and past[#past][4]
update(job, {
  amended = job.amended,
  past = job.begun_at and job.begun_at ~= noted and past_with_run(job, job.settled_at, 'burial', job.error) or job.past,
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
