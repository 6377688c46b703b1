-- cancel: queued -> cancelled; running -> running with a cancel requested, or cancelled if forced
-- in: now, 2 id, 3 reason, 4 'force', 'unless joined' (for withdraw) or ''
-- out: cancelled | requested | existing | finished, and the job | absent

--include parts/shared.lua
--include parts/reading.lua
--include parts/ending.lua
--include parts/changes.lua
local reason, how = ARGV[3], ARGV[4]

local job = readable(known(ARGV[2]))
if not job then
  return { 'absent' }
elseif job.state == CANCELLED then
  return { 'cancelled', told(job) }
elseif not live(job) then
  return { 'finished', told(job) }
elseif how == 'unless joined' and job.duplicates then
  return { 'existing', told(job) }
elseif job.state == RUNNING and how ~= 'force' then
  update(job, { cancel_requested = '1', cancel_reason = job.cancel_reason or present(reason) })
  return { 'requested', told(job) }
end
-- Without a holder, no run has a claim to what ended its job.
job.holder, job.reason = nil, reason
finish(job, CANCELLED)
return { 'cancelled', told(job) }
