-- The results of a charge, for `hold.lua` and `once_note.lua`. `counter.lua` has written it by
-- then.

-- All quotas share one mark. It lives as long as the counts, so that a clock may step back.
local function mark(q, till)
  if q == 1 then
    local life = math.max(kept, till - now)
    redis.call('SET', KEYS[1], text_of('%.0f', math.max(marked, till)), 'PX', text_of('%.0f', math.ceil(life / 1000)))
  end
end

-- The instant of a charge identifies its tick.
local function noted(q)
  local last = size
  while last > here and count_at(last) == 0 do
    last = last - 1
  end
  local leaves = (skipped + first - 2 + last + behind[q]) * tick
  return limit[q] - counted[q] - charged, leaves - now, 0, 0
end

