-- How long after TIME the charges are recorded, us. Units of a lease may be spent until then. It
-- reads this argument from the end, before the instant of a reservation's mark.
local span = tonumber(table.remove(ARGV))

