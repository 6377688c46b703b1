-- discard: buried -> cancelled
-- in: now, 2 id     out: discarded | not_buried, and the job | absent

--include parts/shared.lua
--include parts/reading.lua
--include parts/ending.lua
--include parts/changes.lua
local job = readable(known(ARGV[2]))
if not job then
  return { 'absent' }
elseif job.state ~= BURIED then
  return { 'not_buried', told(job) }
end

-- No run has a claim to it, and what went before it or came after it has long gone on.
job.holder, job.behind, job.trail_id = nil, nil, nil
job.reason, job.settled_at = 'discarded', nil
finish(job, CANCELLED)
return { 'discarded', told(job) }
