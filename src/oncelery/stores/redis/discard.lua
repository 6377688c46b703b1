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

cancel_buried(job, 'discarded')
return { 'discarded', told(job) }
