-- settle: running -> completed | queued (release) | buried | cancelled
-- in: now, 2 id, 3 fence, 4 holder, 5 complete | release | bury | cancel, and then of
--     complete: 6 result, 7 replaced_by, 8 omitted ('' = none; both missing: none)
--     release: 6 cause, 7 delay, 8 error, 9 body (missing: as before)
--     bury: 6 reason, 7 error    cancel: 6 reason
-- out: completed: and nothing else follows | settled, the state, the trailing job that may begin now
--      | fenced, the state | absent

--include parts/shared.lua
--include parts/ending.lua
local id, fence, holder, settlement = ARGV[2], ARGV[3], ARGV[4], ARGV[5]

-- The common case: a first run that went well, and nothing else has happened to its job.
if settlement == 'complete' and ARGV[6] ~= '' and not ARGV[7] then
  local fields = call('HMGET', ns .. 'job:' .. id, 'plain', 'state', 'fence', 'holder', 'key', 'kind',
    'created_at', 'worker', 'caller')
  if fields[1] and fields[2] == RUNNING and fields[3] == fence and fields[4] == holder then
    finish({ id = id, plain = '1', state = RUNNING, fence = fence, holder = holder, key = fields[5], kind = fields[6],
      created_at = fields[7], begun_at = fence, worker = fields[8], caller = fields[9], result = ARGV[6] }, COMPLETED)
    return COMPLETED
  end
end

--include parts/reading.lua
--include parts/changes.lua
local job = unfinished(id)
local owned = job and job.state == RUNNING and job.fence == fence and job.holder == holder
local LEADS_TO = {
  complete = { [COMPLETED] = true },
  release = { [QUEUED] = true, [CANCELLED] = true },
  bury = { [BURIED] = true },
  cancel = { [CANCELLED] = true },
}

if not owned then
  -- Also past its history: a run that others have ended must not take its job for lost.
  job = job or known(id)
  if absent(job, fence) then
    return { 'absent' }
  end
  local last_run_was_ours = tonumber(job.fence) == tonumber(fence) and job.holder == holder
  if not (last_run_was_ours and LEADS_TO[settlement][job.state]) then
    return { 'fenced', job.state }
  end
elseif settlement == 'complete' then
  job.result, job.error = ARGV[6], nil
  job.replaced_by, job.result_omitted = present(ARGV[7] or ''), present(ARGV[8] or '')
  finish(job, COMPLETED)
elseif settlement == 'bury' then
  bury(job, ARGV[6], present(ARGV[7]))
elseif settlement == 'cancel' then
  job.reason = ARGV[6]
  finish(job, CANCELLED)
else
  end_run(job, ARGV[6], present(ARGV[8]))
  if ARGV[9] and not job.cancel_requested then
    call('SET', ns .. 'body:' .. job.id, ARGV[9])
    update(job, { amended = '1' })
  end
  if job.cancel_requested then
    job.reason = job.cancel_reason
    finish(job, CANCELLED)
  else
    queue(job, tonumber(ARGV[7]))
  end
end
return { 'settled', job.state, not live(job) and job.trail_id or '' }
