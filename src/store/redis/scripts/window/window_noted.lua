-- What a charge left, for `hold.lua` and `once.lua`; `window.lua` precedes. All quotas have one mark.

local function mark(_, till)
  marked = math.max(marked, till)
end

local function noted(q)
  local length = window.terms(kinds[q])
  return limit[q] - reply[q + 1] - charged, (columns[kinds[q]].last + 65) * length - now, 0, 0
end

