-- The results of a charge, for `hold.lua` and `once_note.lua`. The algorithm's part follows. For
-- each quota: its pair and tail after the charge, the remaining units, and us until it is whole.
local first, second, tail, left, reset = {}, {}, {}, {}, {}

local function standing_after(q)
  return left[q], reset[q]
end

