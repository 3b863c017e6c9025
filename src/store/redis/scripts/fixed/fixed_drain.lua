local function drainable(_, left)
  return left
end

local function wait_of(_, cost, left, reset)
  return cost <= left and 0 or reset
end

