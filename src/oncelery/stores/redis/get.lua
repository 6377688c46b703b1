-- get: any -> the same
-- in: now, 2 id     out: the job, or none

--include parts/shared.lua
--include parts/reading.lua
local job = readable(known(ARGV[2]))
return job and told(job)
