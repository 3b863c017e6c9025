local function wait_of(q)
  return runs[1].cost <= room[q] and 0 or ending(q) - now
end

local function note(q, till)
  if till > 0 then
    local marked = tail[q] ~= '' and struct.unpack('>I8', tail[q]) or 0
    tail[q] = struct.pack('>I8', math.max(marked, till))
  end
  return 0, 0
end

-- Refunds only while the charge's window counts.
local function take_back(q)
  local given = math.min(cost, counted[q])
  if given == 0 or (made and made < begun[q]) then
    return 0
  end
  second[q], changed = counted[q] - given, true
  return given
end

