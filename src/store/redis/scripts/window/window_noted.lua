-- The results of a charge, for `hold.lua` and `once.lua`. It follows `window.lua`. All quotas share
-- one mark.

local function mark(_, till)
  marked = math.max(marked, till)
end

local function noted(q)
  local length = window.terms(kinds[q])
  return limit[q] - reply[q + 1] - charged, (columns[kinds[q]].last + 65) * length - now, 0, 0
end

