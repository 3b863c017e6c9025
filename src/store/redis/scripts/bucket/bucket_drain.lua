-- To one burst of debt below empty.
local function drainable(burst, left)
  return left + burst
end

local function wait_of(q, cost)
  local repaid, price, burst = unpack(number_of[q])
  -- After a conversion the debt at this instant may be beyond what doubles represent exactly.
  local excess = second[q] - (burst - cost) * price
  return second[q] > 0 and math.max(0, first[q] - now + math.ceil(excess / repaid)) or 0
end

