-- noted
for q = 1, charged > 0 and quotas or 0 do
  on_charge(q, charged)
end
-- end noted
