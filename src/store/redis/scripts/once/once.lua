if charged == 0 then
  return reply
end
local record = {charged, now, 0}
for q = 1, quotas do
  local left, reset, number, debt = noted(q)
  local name = 4 * q - 3
  local told = {about[name], about[name + 1], tonumber(about[name + 2]), tonumber(about[name + 3]), left, reset, number, debt}
  for i = 1, 8 do
    record[#record + 1] = told[i]
  end
end
keep()
redis.call('SET', record_key, cmsgpack.pack(record), 'PX', life)
table.insert(record, 1, 'charged')
return record
