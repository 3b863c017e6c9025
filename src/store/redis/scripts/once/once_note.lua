record = {}

-- The check calls this for each quota that it charges.
local function on_charge(q, charged)
  record[1], record[2], record[3] = charged, now, 0
  local name = 4 * q - 3
  for _, limit in ipairs({about[name], about[name + 1], tonumber(about[name + 2]), tonumber(about[name + 3])}) do
    record[#record + 1] = limit
  end
  for _, result in ipairs({noted(q)}) do
    record[#record + 1] = result
  end
end

