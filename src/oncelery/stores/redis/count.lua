-- count: add to the counters
-- in: now, then of each counter: JSON [task, decision], how many     out: nothing

--include parts/shared.lua
for i = 2, #ARGV, 2 do
  call('HINCRBY', ns .. 'decisions', ARGV[i], ARGV[i + 1])
end
