-- To one burst of debt below empty.
local function drainable(burst, left)
  return left + burst
end

local function wait_of(q, cost)
  local repaid, price, burst = unpack(number_of[q])
  local excess = owed_at(now, repaid, first[q], second[q]) - (burst - cost) * price
  return math.max(0, math.ceil(excess / repaid))
end

