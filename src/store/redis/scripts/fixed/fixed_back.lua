-- Only while the window in which the charge was made counts.
local function take_back(q)
  local given = math.min(cost, counted[q])
  if given == 0 or (made and made < from[q]) then
    return 0
  end
  second[q], changed = counted[q] - given, true
  return given
end

