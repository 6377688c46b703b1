-- settle: running -> completed | queued (release) | buried | cancelled
-- in: now, 2 id, 3 fence, 4 holder, 5 complete | release | bury | cancel, then
--     complete: 6 result    release: 6 cause, 7 delay, 8 error, 9 body (missing: as before)    bury: 6 reason, 7 error    cancel: 6 reason
-- out: settled, the state, the trailing job that may begin now | fenced, the state, '' if it is not known

--include shared.lua
--include ending.lua
local fence, holder, settlement = ARGV[3], ARGV[4], ARGV[5]

local job = unfinished(ARGV[2])
local owned = job and job.state == RUNNING and job.fence == fence and job.holder == holder
if owned and settlement == 'complete' then
  job.result, job.error = ARGV[6], nil
  finish(job, COMPLETED)
  return { 'settled', COMPLETED, job.trail_id or '' }
end

--include reading.lua
--include changes.lua
local LEADS_TO = {
  complete = { [COMPLETED] = true },
  release = { [QUEUED] = true, [CANCELLED] = true },
  bury = { [BURIED] = true },
  cancel = { [CANCELLED] = true },
}

if not owned then
  job = readable(job or known(ARGV[2]))
  if not job then
    return { 'fenced', '', '' }
  end
  local last_run_was_ours = tonumber(job.fence) == tonumber(fence) and job.holder == holder
  if not (last_run_was_ours and LEADS_TO[settlement][job.state]) then
    return { 'fenced', job.state, '' }
  end
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
