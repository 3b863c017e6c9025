-- Only while the window in which the charge was made counts.
local function take_back(q)
  local start, count = current(q, first[q], second[q])
  local given = math.min(cost, count)
  if given == 0 or (made and made < start) then
    return 0
  end
  redis.call('SETRANGE', KEYS[q], 8, struct.pack('>I8', count - given))
  return given
end

