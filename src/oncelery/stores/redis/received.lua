-- received: queued -> queued with a lease to open its message, or with one more death counted; or buried over the limit
-- in: now, 2 id, 3 limit, 4 lease (missing: who opened it is dead; 0: it was opened)
-- out: counted, how many | busy | buried | finished | cancelled, and the job | absent
-- `received` has the deaths, and behind a colon when the lease of the one who opens a message is over.

--include parts/shared.lua
--include parts/reading.lua
--include parts/ending.lua
--include parts/changes.lua
local limit, lease = tonumber(ARGV[3]), tonumber(ARGV[4])

local job = readable(known(ARGV[2]))
if not job then
  return { 'absent' }
elseif job.state == CANCELLED then
  return { 'cancelled', told(job) }
elseif not live(job) then
  return { 'finished', told(job) }
end

local deaths, till = (job.received or '0'):match('^(%d+):?(%d*)$')
if job.state == QUEUED then
  deaths, till = tonumber(deaths), tonumber(till)
  if till and lease and lease > 0 and till > now + lease then
    -- Written by a clock that was ahead.
    till = nil
  end
  if not lease or (lease > 0 and till and till <= now) then
    deaths = deaths + 1
  elseif lease > 0 and till then
    return { 'busy', told(job) }
  end
  till = lease and lease > 0 and ':' .. digits(now + lease) or ''
  deaths = digits(deaths)
  update(job, { received = deaths .. till })
  if tonumber(deaths) > limit then
    bury(job, 'never started')
    return { 'buried', told(job) }
  end
end
return { 'counted', deaths }
