-- noted
-- The wait ends when enough of the oldest ticks have left.
local function wait_of(q)
  local excess = counted[q] + charged + cost - limit[q]
  if cost > limit[q] then
    return -1
  end
  for place = before - behind[q] + 1, excess > 0 and size or 0 do
    excess = excess - count_at(place) - (place == here and charged or 0)
    if excess <= 0 then
      return (skipped + first - 2 + place + behind[q]) * tick - now
    end
  end
  return 0
end

local function after(q)
  local left, reset = noted(q)
  return {math.max(0, left), reset, 0, 0}, wait_of(q)
end
-- end noted
