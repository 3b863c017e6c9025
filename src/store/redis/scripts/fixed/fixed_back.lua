-- Refunds only while the charge's window counts.
local function take_back(q)
  local given = math.min(cost, counted[q])
  if given == 0 or (made and made < from[q]) then
    return 0
  end
  second[q], changed = counted[q] - given, true
  return given
end

