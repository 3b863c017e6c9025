-- What a charge left, for `hold.lua` and `once.lua`; `window.lua` precedes. All quotas have one mark.

local function mark(q, till)
  if q == 1 then
    redis.call('SETRANGE', state_key, 0, struct.pack('>I8', math.max(marked, till)))
  end
end

local function noted(q)
  local length = window.terms(kinds[q])
  return limit[q] - reply[q + 1] - charged, (columns[kinds[q]].last + 65) * length - now, 0, 0
end

