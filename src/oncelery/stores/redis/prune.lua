-- prune: (completed | cancelled), past its history -> absent
-- in: now, 2 limit     out: how many jobs went

--include shared.lua
--include reading.lua
--include changes.lua
local limit, pruned = tonumber(ARGV[2]), 0

-- The oldest stand first; what is not past its history ends the search.
local function prune(n, kind)
  while pruned < limit do
    local entries = call('XRANGE', ns .. 'finished:' .. n, '-', '+', 'COUNT', math.min(FETCHED_AT_ONCE, limit - pruned))
    for _, entry in ipairs(entries) do
      local job = unpack_entry(n, kind, entry)
      if readable(job) then
        return
      end
      forget(job)
      pruned = pruned + 1
    end
    if #entries == 0 then
      call('DEL', ns .. 'finished:' .. n)
      call('HDEL', ns .. 'kinds', n, cjson.encode(kind))
      return
    end
  end
end

local kinds = call('HGETALL', ns .. 'kinds')
for i = 1, #kinds, 2 do
  if tonumber(kinds[i]) then
    prune(kinds[i], cjson.decode(kinds[i + 1]))
  end
end

for _, hour in ipairs(call('ZRANGEBYSCORE', ns .. 'hours', '-inf', digits(now - HOURS_KEPT))) do
  call('DEL', ns .. 'hour:' .. hour)
  call('ZREM', ns .. 'hours', hour)
end
return pruned
