-- received: queued -> queued with one more delivery counted, or buried over the limit
-- in: now, 2 id, 3 limit
-- out: counted, how many | buried | finished | cancelled, and the job | absent

--include shared.lua
--include reading.lua
--include ending.lua
--include changes.lua
local job = readable(known(ARGV[2]))
if not job then
  return { 'absent' }
elseif job.state == CANCELLED then
  return { 'cancelled', told(job) }
elseif not live(job) then
  return { 'finished', told(job) }
elseif job.state == QUEUED then
  update(job, { received = (job.received or 0) + 1 })
  if tonumber(job.received) > tonumber(ARGV[3]) then
    bury(job, 'never started')
    return { 'buried', told(job) }
  end
end
return { 'counted', job.received or '0' }
