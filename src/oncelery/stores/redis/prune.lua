-- prune: (completed | cancelled), past its history -> absent
-- in: now, 2 limit     out: how many jobs went

--include parts/shared.lua
--include parts/reading.lua
--include parts/changes.lua
local limit, pruned = tonumber(ARGV[2]), 0

-- The oldest stand first; what is not past its history ends the search.
local function prune(n, ending)
  local stream = ns .. 'finished:' .. n
  while pruned < limit do
    local entries = call('XRANGE', stream, '-', '+', 'COUNT', math.min(FETCHED_AT_ONCE, limit - pruned))
    for _, entry in ipairs(entries) do
      local job = unpack_entry(n, ending, entry)
      if readable(job) then
        call('XTRIM', stream, 'MINID', entry[1])
        return
      end
      disconnect(job)
      pruned = pruned + 1
    end
    if #entries == 0 then
      call('DEL', stream)
      call('HDEL', ns .. 'endings', n, ending)
      return
    end
    local stamp, number = entries[#entries][1]:match('^(%d+)%-(%d+)$')
    call('XTRIM', stream, 'MINID', stamp .. '-' .. digits(number + 1))
  end
end

local endings = call('HGETALL', ns .. 'endings')
for i = 1, #endings, 2 do
  if tonumber(endings[i]) then
    prune(endings[i], endings[i + 1])
  end
end

-- A kind that no job has any more; the next one of it makes it known again.
for _, kind in ipairs(call('ZRANGEBYSCORE', ns .. 'kinds', '-inf', digits(now - SLOW_CHECK))) do
  if call('EXISTS', ns .. 'live:' .. kind, ns .. 'held:' .. kind, ns .. 'buried:' .. kind) == 0 then
    call('ZREM', ns .. 'kinds', kind)
  end
end

-- Times that are over, of scopes drawn at random: no call takes longer for there being many.
local paces = call('HRANDFIELD', ns .. 'paces', limit, 'WITHVALUES')
for i = 1, #paces, 2 do
  if tonumber(paces[i + 1]) <= now then
    call('HDEL', ns .. 'paces', paces[i])
  end
end

for _, hour in ipairs(call('ZRANGEBYSCORE', ns .. 'hours', '-inf', digits(now - HOURS_KEPT - HOUR), 'LIMIT', 0, 10)) do
  for _, counted in ipairs(call('HKEYS', ns .. 'hour:' .. hour)) do
    call('DEL', ns .. 'hour:' .. hour .. ':' .. cjson.decode(counted)[2])
  end
  call('DEL', ns .. 'hour:' .. hour)
  call('ZREM', ns .. 'hours', hour)
end
return pruned
