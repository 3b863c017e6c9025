-- The check calls this for each quota that it charges.
local function on_charge(q)
  mark(q, now + hold)
end

